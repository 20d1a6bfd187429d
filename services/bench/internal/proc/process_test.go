package proc

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

const testTimeout = 2 * time.Minute // a hang guard

func shell(t *testing.T, script string) *Program {
	t.Helper()
	path, err := exec.LookPath("sh")
	require.NoError(t, err)
	p, err := Start(t.Context(), "script", path, "-c", script)
	require.NoError(t, err)
	return p
}

func TestStopEndsAProgramBySIGTERM(t *testing.T) {
	rpctest.NoLeaks(t)
	p := shell(t, `trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done`)
	require.NoError(t, p.Wait(t.Context(), testTimeout, func(context.Context) error {
		if p.log.String() == "" {
			return errors.New("not yet")
		}
		return nil
	}))
	require.NoError(t, p.Check())
	_, err := p.CPU()
	require.NoError(t, err)
	memory, err := p.Memory()
	require.NoError(t, err)
	require.Positive(t, memory)
	require.NoError(t, p.Stop(testTimeout))
	require.ErrorIs(t, p.Check(), ErrEnded)
}

func TestWaitReportsTheLogOfAnEndedProgram(t *testing.T) {
	rpctest.NoLeaks(t)
	p := shell(t, `echo out of luck >&2; exit 3`)
	err := p.Wait(t.Context(), testTimeout, func(context.Context) error { return errors.New("never") })
	require.ErrorIs(t, err, ErrEnded)
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "out of luck")
	require.ErrorIs(t, p.Stop(testTimeout), ErrEnded)
}

func TestStopKillsAfterTheTimeout(t *testing.T) {
	rpctest.NoLeaks(t)
	p := shell(t, `trap '' TERM; echo deaf; while :; do sleep 0.01; done`)
	require.NoError(t, p.Wait(t.Context(), testTimeout, func(context.Context) error {
		if p.log.String() == "" {
			return errors.New("not yet")
		}
		return nil
	}))
	require.ErrorContains(t, p.Stop(50*time.Millisecond), "was killed")
}

func TestStartReportsAMissingProgram(t *testing.T) {
	_, err := Start(t.Context(), "ghost", "/nonexistent/ghost")
	require.ErrorContains(t, err, "start ghost")
}

func TestCPUIsUserPlusSystemTime(t *testing.T) {
	for name, tc := range map[string]struct {
		stat string
		want time.Duration
		bad  bool
	}{
		"plain":               {"7 (sh) S 1 7 7 0 -1 4194304 1 2 3 4 150 25 9 9 20 0 1", 1750 * time.Millisecond, false},
		"a name like numbers": {"7 (a) S (1 2) R 1 7 7 0 -1 4194304 1 2 3 4 1 0 9 9 20 0 1", 10 * time.Millisecond, false},
		"cut off":             {"7 (sh) S 1", 0, true},
		"no numbers":          {"7 (sh) S 1 7 7 0 -1 4194304 1 2 3 4 x y 9 9", 0, true},
		"nothing":             {"", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat(tc.stat)
			require.Equal(t, tc.bad, err != nil)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestCPUIncludesChildren(t *testing.T) {
	// KILL, because TERM is lost on a child that is still the shell and has its trap.
	p := shell(t, `trap 'kill -KILL $child; exit 0' TERM; sleep 100 & child=$!; echo ready; while :; do sleep 0.01; done`)
	require.NoError(t, p.Wait(t.Context(), testTimeout, func(context.Context) error {
		if p.log.String() == "" {
			return errors.New("not yet")
		}
		return nil
	}))
	pids, err := processTree(p.PID())
	require.NoError(t, err)
	require.Equal(t, p.PID(), pids[0])
	require.GreaterOrEqual(t, len(pids), 2)
	require.NoError(t, p.Stop(testTimeout))
}

func TestCPUIgnoresChildrenThatEnded(t *testing.T) {
	rpctest.NoLeaks(t)
	p := shell(t, `trap 'exit 0' TERM; echo ready; while :; do /bin/true; done`)
	require.NoError(t, p.Wait(t.Context(), testTimeout, func(context.Context) error {
		if p.log.String() == "" {
			return errors.New("not yet")
		}
		return nil
	}))
	for range 500 {
		_, err := p.CPU()
		require.NoError(t, err)
	}
	require.NoError(t, p.Stop(testTimeout))
}

func TestMemoryIsTheResidentSet(t *testing.T) {
	got, err := parseStatus("Name:\tx\nVmHWM:\t 9 kB\nVmRSS:\t    2048 kB\n")
	require.NoError(t, err)
	require.EqualValues(t, 2<<20, got)
	_, err = parseStatus("Name:\tx\n")
	require.Error(t, err)
}

func TestLogKeepsItsEnd(t *testing.T) {
	var log tail
	for range 3000 {
		_, err := log.Write([]byte("0123456789"))
		require.NoError(t, err)
	}
	_, err := log.Write([]byte("the end"))
	require.NoError(t, err)
	require.Len(t, log.String(), tailBytes)
	require.Contains(t, log.String(), "9the end")
}

func TestFreeAddressIsFree(t *testing.T) {
	a, err := FreeAddress(t.Context())
	require.NoError(t, err)
	b, err := FreeAddress(t.Context())
	require.NoError(t, err)
	for _, address := range []string{a, b} {
		_, text, err := net.SplitHostPort(address)
		require.NoError(t, err)
		port, err := strconv.Atoi(text)
		require.NoError(t, err)
		if given := firstEphemeral(); given > 2*lowestPort {
			require.GreaterOrEqual(t, port, lowestPort)
			require.Less(t, port, given, "nobody is given it by chance")
		}
	}
}

func TestKillWaitsForTheEnd(t *testing.T) {
	rpctest.NoLeaks(t)
	p := shell(t, `trap '' TERM; while :; do sleep 0.01; done`)
	require.NoError(t, p.Kill())
	require.ErrorIs(t, p.Check(), ErrEnded)
	require.ErrorIs(t, p.Kill(), ErrEnded)
}
