"""Send and receive one message, with a broker in a container of its own, or the one of the environment."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HttpWaitStrategy

CONFIG = json.dumps(
    {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "orders"}]}]}}
)


# start
@contextmanager
def broker() -> Iterator[str]:
    container = (
        DockerContainer("peeklock")
        .with_exposed_ports(5672, 5300)
        .with_env("CONFIG_JSON", CONFIG)
        .waiting_for(HttpWaitStrategy(5300, "/health"))
    )
    with container:
        host, port = container.get_container_host_ip(), container.get_exposed_port(5672)
        yield (
            f"Endpoint=sb://{host}:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
            "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
        )


# end


def main(connection_string: str) -> None:
    with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
        client.get_queue_receiver("orders", max_wait_time=10) as receiver,
    ):
        sender.send_messages(ServiceBusMessage("hello"))
        for message in receiver:
            print("received:", str(message))
            receiver.complete_message(message)
            break


if given := os.environ.get("SERVICEBUS_CONNECTION_STRING"):
    main(given)
else:
    with broker() as made:
        main(made)
