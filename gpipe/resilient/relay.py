"""Carries TCP connections on to another address: for cut_line_test.sh, whose ranks on the second machine cannot reach the
launcher's meeting place, which listens on the first machine's loopback.

    relay.py ADDRESS PORT FILE

FILE has ADDRESS:PORT of the place, and may be written later.
"""

import pathlib
import socket
import sys
import threading


def carry(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:  # an end has gone
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:  # closed already
            pass


def main():
    listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
    while True:
        visitor, _ = listener.accept()
        try:
            address, port = pathlib.Path(sys.argv[3]).read_text(encoding="utf-8").strip().rsplit(":", 1)
            place = socket.create_connection((address, int(port)))
        except (OSError, ValueError):  # the launcher is not there
            visitor.close()
            continue
        for ends in ((visitor, place), (place, visitor)):
            threading.Thread(target=carry, args=ends, daemon=True).start()


if __name__ == "__main__":
    main()
