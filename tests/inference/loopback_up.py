"""Switches the loopback interface of a fresh network namespace on."""

import fcntl
import socket
import struct

SET_FLAGS = 0x8914
UP_AND_RUNNING = 0x41

if __name__ == "__main__":
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, SET_FLAGS, struct.pack("16sh", b"lo", UP_AND_RUNNING))
