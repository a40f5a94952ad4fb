"""Of this package; its major and minor number are those of the C interface that it speaks."""
VERSION = "1.0.0"
