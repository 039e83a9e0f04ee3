"""A secure sum over TCP: a server, and three clients in threads; real ones have TLS as well."""

import threading
from multiprocessing.connection import Client, Listener

import sotto

VECTORS = {"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [0.5, 0.5]}
AGREED = sotto.SecureSum(tuple(VECTORS), size=2, clipping_norm=10.0, corrupt=1, name="monday")


def take_part(name, address):
    client = sotto.SecureSumClient(AGREED, name, VECTORS[name])
    with Client(address) as line:
        line.send_bytes(name.encode())
        line.send_bytes(client.hello)
        while not client.done:
            line.send_bytes(client.answer(line.recv_bytes()))


with Listener(("localhost", 0)) as listener:
    for name in VECTORS:
        threading.Thread(target=take_part, args=(name, listener.address)).start()
    lines = {a.recv_bytes().decode(): a for a in (listener.accept() for _ in VECTORS)}
    server = sotto.SecureSumServer(AGREED)
    while not server.done:
        answers = {name: line.recv_bytes() for name, line in lines.items()}
        for name, message in server.step(answers).items():
            lines[name].send_bytes(message)
print(server.total)
