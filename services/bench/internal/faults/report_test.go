package faults

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReportNamesUnprovenFaults(t *testing.T) {
	r := &Report{Undisturbed: &Stage{Name: "undisturbed"}, Stages: []*Stage{{
		Name: "workers", Gaps: []Gaps{{Kind: Kill, Faults: 3}, {Kind: Freeze, Faults: 2, Resumes: 5}, {Kind: Partition}},
	}}}
	var out strings.Builder
	r.Print(&out)
	require.Equal(t, 1, strings.Count(out.String(), "not proven: "), "neither a kind that met streams nor one that was not injected")
	require.Contains(t, out.String(), "not proven: kill of workers met no stream in 3 faults")
}
