package chaos

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReportNamesFaultsThatMetNothing(t *testing.T) {
	r := &Report{Undisturbed: &Stage{Name: "undisturbed"}, Stages: []*Stage{{
		Name: "workers", Gaps: []Gaps{{Kind: Kill, Faults: 3}, {Kind: Freeze, Faults: 2, Resumes: 5}, {Kind: Cut}},
	}}}
	var out strings.Builder
	r.Print(&out)
	require.Equal(t, 1, strings.Count(out.String(), "not proven: "), "not what met some, and not what was never done")
	require.Contains(t, out.String(), "not proven: kill of workers met no stream in 3 faults")
}
