"""The version of the package, apart from it: rooms must not import the package above them.

The only place that has it: packages, `ottla --version` and the client version that brokers see take it from here.
"""

VERSION = "0.2.0.dev0"
