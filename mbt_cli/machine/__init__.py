"""What looks at this machine rather than at a study."""
