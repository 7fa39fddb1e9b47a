"""The version of the package, apart from it: rooms must not import the package above them."""

VERSION = "0.1.0"
