package fairqueue_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/fairqueue"
	"github.com/millrace/millrace/internal/scripttest"
)

// TestScripts runs scripts of commands, one a line. The line after a command, "-> ...", is the
// resulting order, which -update rewrites. An item's flow is PRIORITY/TENANT, and its age grows
// with every push.
//
//	push ITEM FLOW [age=N]
//	serve TOKENS: remove the next item and charge its flow
//	charge FLOW TOKENS
//	refund FLOW TOKENS
//	remove ITEM
func TestScripts(t *testing.T) {
	scripttest.Run(t, play)
}

func play(t *testing.T, text string) string {
	t.Helper()
	var q fairqueue.Queue[string]
	flows, age := map[string]fairqueue.Flow{}, uint64(100)
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "-> ") {
			continue
		}
		out.WriteString(line)
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		outcome := ""
		switch words[0] {
		case "push":
			age++
			at := age
			if len(words) > 3 {
				at = uint64(number(t, strings.TrimPrefix(words[3], "age=")))
			}
			flows[words[1]] = flow(t, words[2])
			require.True(t, q.Push(words[1], flows[words[1]], at))
		case "serve":
			item, found := q.Next(nil)
			require.True(t, found)
			require.True(t, q.Remove(item))
			q.Charge(flows[item], number(t, words[1]))
			outcome = item + " is served; "
		case "charge":
			q.Charge(flow(t, words[1]), number(t, words[2]))
		case "refund":
			q.Refund(flow(t, words[1]), number(t, words[2]))
		case "remove":
			require.True(t, q.Remove(words[1]))
		default:
			require.FailNow(t, "unknown command", line)
		}
		fmt.Fprintf(&out, "-> %s%d wait: %s\n", outcome, q.Len(), strings.Join(slices.Collect(q.Each), " "))
	}
	return strings.ReplaceAll(out.String(), ": \n", "\n")
}

func flow(t *testing.T, text string) fairqueue.Flow {
	t.Helper()
	priority, tenant, _ := strings.Cut(text, "/")
	return fairqueue.Flow{Priority: int32(number(t, priority)), Tenant: tenant}
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}
