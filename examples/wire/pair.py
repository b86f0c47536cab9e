"""A server and a client that speak EtherNet/IP, as little of it as asks for one attribute and answers.

    pair.py server ANSWER_MS      answers after so many milliseconds
    pair.py client REQUESTS       asks so many times, one after the other
"""

import json
import socket
import struct
import sys
import time

SERVER = ("10.77.0.2", 44818)
REGISTER_SESSION, SEND_RR_DATA = 0x65, 0x6F
GET_ATTRIBUTE_SINGLE = b"\x0e\x03\x20\x04\x24\x01\x30\x03"
ANSWER = b"\x8e\x00\x00\x00\x2a\x00"


def frame(command, session, context, data):
    return struct.pack("<HHII8sI", command, len(data), session, 0, context, 0) + data


def message(cip):
    return struct.pack("<IHHHHHH", 0, 0, 2, 0, 0, 0xB2, len(cip)) + cip


def read_exactly(connection, size):
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            return None
        data += piece
    return data


def read_frame(connection):
    header = read_exactly(connection, 24)
    if header is None:
        return None
    command, size, session, _, context, _ = struct.unpack("<HHII8sI", header)
    return command, session, context, read_exactly(connection, size)


def serve(answer_ms):
    with socket.create_server(SERVER) as listener:
        print(json.dumps({"event": "server_ready", "listen": "%s:%d" % SERVER}), flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while (asked := read_frame(connection)) is not None:
                    command, session, context, data = asked
                    if command == REGISTER_SESSION:
                        connection.sendall(frame(command, 7, context, data))
                    else:
                        time.sleep(answer_ms / 1000)
                        connection.sendall(frame(command, session, context, message(ANSWER)))


def ask(requests):
    with socket.create_connection(SERVER, timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(frame(REGISTER_SESSION, 0, bytes(8), struct.pack("<HH", 1, 0)))
        _, session, _, _ = read_frame(connection)
        answered = 0
        for number in range(requests):
            context = struct.pack("<Q", number + 1)
            connection.sendall(frame(SEND_RR_DATA, session, context, message(GET_ATTRIBUTE_SINGLE)))
            _, _, echoed, data = read_frame(connection)
            answered += echoed == context and data.endswith(ANSWER)
    print("%d of %d answered" % (answered, requests))
    with open("out.json", "w") as out:
        json.dump({"requests": requests, "answered": answered}, out)
    return 0 if answered == requests else 1


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(float(sys.argv[2]))
    else:
        sys.exit(ask(int(sys.argv[2])))
