package processors_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/processors"
)

func TestFollowRestoresAllProcessors(t *testing.T) {
	rpctest.NoLeaks(t)
	before := runtime.GOMAXPROCS(4)
	defer runtime.GOMAXPROCS(before)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		processors.Follow(ctx, hclog.NewNullLogger())
	}()
	require.Eventually(t, func() bool { return runtime.GOMAXPROCS(0) < 4 }, time.Minute, time.Millisecond)
	cancel()
	<-done
	require.Equal(t, 4, runtime.GOMAXPROCS(0))
}
