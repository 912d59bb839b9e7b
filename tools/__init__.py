"""What runs before anything is installed, and what checks the lock files."""
