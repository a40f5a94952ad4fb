# SPDX-License-Identifier: Apache-2.0
"""The version of this package. Its major and minor numbers are those of the C interface that it uses."""
VERSION = "1.0.0"
