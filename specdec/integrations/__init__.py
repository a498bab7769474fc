"""This engine inside other projects. Each module needs the project it is named after."""
