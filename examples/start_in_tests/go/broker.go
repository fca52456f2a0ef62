// Package broker starts a broker for the tests of a program; it ends with this process.
package broker

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Broker is a running broker.
type Broker struct {
	ConnectionString string
	HTTPPort         int
	process          *exec.Cmd
}

// Start starts a broker with further options of peeklock serve, such as "--durability", "memory".
func Start(options ...string) (*Broker, error) {
	folder, err := os.MkdirTemp("", "peeklock")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(folder, "ready.json")
	process := exec.Command("peeklock", append([]string{"serve", "--amqp-port", "0", "--http-port", "0",
		"--ready-file", file, "--exit-with-parent"}, options...)...)
	process.Stderr = os.Stderr
	if err := process.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	for timeout := time.After(30 * time.Second); ; {
		broker := &Broker{process: process}
		if text, err := os.ReadFile(file); err == nil {
			return broker, json.Unmarshal(text, broker)
		}
		select {
		case <-ended:
			return nil, errors.New("the broker ended; its log says why")
		case <-timeout:
			return nil, errors.Join(errors.New("the broker did not become ready in 30 s"), process.Process.Kill())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends the broker in order.
func (b *Broker) Stop() error { return b.process.Process.Signal(os.Interrupt) }
