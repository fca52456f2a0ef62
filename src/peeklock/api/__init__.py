"""Our own HTTP API, `/$api/v1/`, sans-IO: what the REST interface of Azure Service Bus lacks, as JSON."""
