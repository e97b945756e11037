// Injects a CDI device into an OCI spec as a container runtime does, with the CDI project's own
// library, and prints what a container would get.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/container-orchestrated-devices/container-device-interface/pkg/cdi"
	oci "github.com/opencontainers/runtime-spec/specs-go"
)

func main() {
	registry := cdi.GetRegistry(cdi.WithSpecDirs(os.Args[1]))
	if err := registry.Refresh(); err != nil {
		fail(err)
	}
	spec := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
	if missing, err := registry.InjectDevices(spec, os.Args[2:]...); err != nil {
		fail(fmt.Errorf("%v: %w", missing, err))
	}
	if err := json.NewEncoder(os.Stdout).Encode(spec); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
