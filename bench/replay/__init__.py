"""Replays: public and made-up streams of requests, and the placement rules that they are put to."""
