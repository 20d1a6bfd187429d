package model

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// is says whether an error is one of those.
func is(err error, those ...error) bool {
	return slices.ContainsFunc(those, func(one error) bool { return errors.Is(err, one) })
}

// copyOf copies a model file into the same folder.
func copyOf(t *testing.T, m *Manager, name, as string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(m.cfg.Dir, name+extension))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(m.cfg.Dir, as+extension), data, 0o600))
}

func TestVictimsAreTheLongestUnusedThatMakeRoom(t *testing.T) {
	s := time.Second
	a, b, c := Idle{"a", 1, 30 * s}, Idle{"b", 10, 20 * s}, Idle{"c", 5, 10 * s}
	for name, tc := range map[string]struct {
		short uint64
		after time.Duration
		from  []Idle
		want  []string
		in    time.Duration
	}{
		"one that is enough":                          {1, s, []Idle{a, b, c}, []string{"a"}, time.Millisecond},
		"one is not unloaded where the next makes up": {8, s, []Idle{a, b, c}, []string{"b"}, time.Millisecond},
		"two":                                   {11, s, []Idle{a, b, c}, []string{"a", "b"}, time.Millisecond},
		"all":                                   {16, s, []Idle{a, b, c}, []string{"a", "b", "c"}, time.Millisecond},
		"none where all are too few":            {17, s, []Idle{a, b, c}, nil, 0},
		"none that was used a moment ago":       {12, 15 * s, []Idle{a, b, c}, nil, 5 * s},
		"one at the very time":                  {10, 20 * s, []Idle{a, b}, []string{"b"}, time.Millisecond},
		"none where there is none":              {1, s, nil, nil, 0},
		"the one used last is spared":           {5, s, []Idle{c, {"d", 5, 5 * s}}, []string{"c"}, time.Millisecond},
		"room comes when the last one is ready": {16, 40 * s, []Idle{a, b, c}, nil, 30 * s},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, v := range victims(tc.short, tc.after, tc.from) {
				got = append(got, v.Name)
			}
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.in, roomIn(tc.short, tc.after, tc.from))
		})
	}
}

func TestVictimsAreEnoughAndNoneIsInVain(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		var from []Idle
		for age := time.Duration(100); age > 0 && len(from) < 6; age -= time.Duration(rng.IntN(30)) {
			from = append(from, Idle{string(rune('a' + len(from))), rng.Uint64N(20), age})
		}
		short, after := rng.Uint64N(60)+1, time.Duration(rng.IntN(100))
		chosen := victims(short, after, from)
		var sum, all uint64
		for _, v := range chosen {
			require.GreaterOrEqual(t, v.Age, after)
			sum += v.Bytes
		}
		for _, m := range from {
			if m.Age >= after {
				all += m.Bytes
			}
		}
		require.Equal(t, all >= short, len(chosen) > 0, "short of %d, after %d: %v", short, after, from)
		for _, v := range chosen {
			require.Less(t, sum-v.Bytes, short, "%s of %v is unloaded in vain", v.Name, chosen)
		}
	}
}
