package placement_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/scripttest"
	"github.com/millrace/millrace/services/scheduler/internal/placement"
)

// A script is lines of commands; the line after a choose, "-> ...", is its outcome, and -update
// rewrites it. Of equal workers the one of the higher rank comes first, which for model "m" is the
// order w3, w1, w2.
//
//	worker ID [loaded] [file] [broken] [needed=BYTES] [free=BYTES] [reclaimable=BYTES]
//	gone ID
//	choose MODEL COPIES
func TestScripts(t *testing.T) {
	scripttest.Run(t, play)
}

// play runs a script and returns it with the actual outcomes.
func play(t *testing.T, script string) string {
	t.Helper()
	var fleet []placement.Candidate
	var out strings.Builder
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "-> ") {
			continue
		}
		out.WriteString(line)
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		remove := func() {
			fleet = slices.DeleteFunc(fleet, func(c placement.Candidate) bool { return c.ID == words[1] })
		}
		switch words[0] {
		case "worker":
			remove()
			fleet = append(fleet, candidate(t, words[1:]))
		case "gone":
			remove()
		case "choose":
			n, err := strconv.Atoi(words[2])
			require.NoError(t, err)
			before := slices.Clone(fleet)
			ids, err := placement.Choose(words[1], n, fleet)
			require.Equal(t, before, fleet, "candidates are its caller's")
			if err != nil {
				fmt.Fprintf(&out, "-> %v\n", err)
			} else {
				fmt.Fprintf(&out, "-> %s\n", strings.Join(ids, " "))
			}
		default:
			require.FailNow(t, "unknown command", line)
		}
	}
	return out.String()
}

// candidate parses a worker of a script.
func candidate(t *testing.T, words []string) placement.Candidate {
	t.Helper()
	c := placement.Candidate{ID: words[0]}
	bytes := map[string]*uint64{"needed": &c.Needed, "free": &c.Free, "reclaimable": &c.Reclaimable}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "loaded":
			c.Loaded = true
		case "file":
			c.HasFile = true
		case "broken":
			c.HasFile, c.Problem = true, true
		default:
			require.Contains(t, bytes, key)
			n, err := strconv.ParseUint(value, 10, 64)
			require.NoError(t, err)
			*bytes[key] = n
		}
	}
	return c
}
