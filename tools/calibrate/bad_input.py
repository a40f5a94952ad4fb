# SPDX-License-Identifier: Apache-2.0
"""An error for user input that cannot be used. The message says where it was given, what it was and what was expected."""


class BadInput(Exception):
    pass
