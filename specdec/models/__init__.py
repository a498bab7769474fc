"""Networks. Nothing else in the package knows what is inside one."""
