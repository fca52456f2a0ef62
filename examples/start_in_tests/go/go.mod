module peeklock.example/broker

go 1.21
