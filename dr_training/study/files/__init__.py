"""The studies that come with the package, as TOML files (docs/training-studies.md)."""
