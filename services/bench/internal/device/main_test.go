package device

import (
	"fmt"
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/internal/cputest"
)

// peerKey is set while this test binary acts as a peer process of a run; "closed": its device
// cannot be opened, "dies": it ends at once.
const peerKey = "MILLRACE_BENCH_TEST_PEER"

func TestMain(m *testing.M) {
	how, peer := os.LookupEnv(peerKey)
	if !peer {
		os.Exit(m.Run())
	}
	open := func() (engine.Device, error) { return openCPU(true) }
	switch how {
	case "closed":
		open = func() (engine.Device, error) { return nil, engine.ErrNoDevice }
	case "dies":
		fmt.Fprintln(os.Stderr, "no such library")
		os.Exit(3)
	}
	if err := Peer(open, testPiece, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

const (
	testPiece = 4 << 20
	testLimit = 40 << 20
)

func openCPU(pool bool) (engine.Device, error) {
	o := native.Options{Device: "cpu", Threads: 1, Path: cputest.Path(), BytesLimit: testLimit}
	if !pool {
		o.PoolLimit = native.NoPool
	}
	return native.Open(o, hclog.NewNullLogger())
}
