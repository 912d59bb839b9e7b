"""What the service is measured against; each module is started as a process of its own."""
