"""What a person gave that cannot be used: the message says where, what and what was expected."""


class BadInput(Exception):
    pass
