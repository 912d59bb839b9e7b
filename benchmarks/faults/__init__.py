"""What the service does when it is attacked, overloaded, killed and stopped, with counts."""
