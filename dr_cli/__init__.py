"""The `dr` command. Commands import what they need when they run, so `dr --help` stays quick."""
