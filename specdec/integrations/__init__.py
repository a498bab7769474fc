"""Adapters for other projects. Each module needs the project it is named after."""
