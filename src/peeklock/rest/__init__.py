"""Messages over HTTP, sans-IO: requests in, commands of the broker out, answers when their effects come."""
