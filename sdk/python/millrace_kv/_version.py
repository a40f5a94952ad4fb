# SPDX-License-Identifier: Apache-2.0
"""The version of this package: that of Millrace (the file VERSION; tools/check_version.py compares them).

The C interface has a number of its own, which _library.py checks: it changes only when the interface does."""
VERSION = "0.2.0"
