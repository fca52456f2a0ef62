#!/bin/sh
# Compiles the program into the folder $1. go.mod and go.sum pin every module; -mod=readonly keeps them as they are.
set -eu
go build -mod=readonly -trimpath -o "$1/interop" .
version() { go list -mod=readonly -m -f '{{.Version}}' "$1" | sed 's/^v//'; }
printf '{"azservicebus": "%s", "azcore": "%s", "go-amqp": "%s", "Go": "%s"}\n' \
  "$(version github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus)" \
  "$(version github.com/Azure/azure-sdk-for-go/sdk/azcore)" \
  "$(version github.com/Azure/go-amqp)" \
  "$(go env GOVERSION | sed 's/^go//')" > "$1/versions.json"
