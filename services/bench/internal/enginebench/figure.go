package enginebench

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Rows is what the rows of a model and a length of prompts begin with, as floors name them: the file's name without its
// extension, and the tokens of a prompt.
func Rows(model string, prompt int) string {
	return fmt.Sprintf("%s/%d/", strings.TrimSuffix(filepath.Base(model), extension), prompt)
}

// Figure is a metric of a row: tokens, read_share and ops_share of CLASS/BATCH; verified_gbps and ready_gbps of load.
func (r *Report) Figure(row, metric string) (float64, bool) {
	figures := map[string]float64{}
	rows := Rows(r.Model.File, r.Prompt)
	if row == rows+"load" {
		figures = map[string]float64{"verified_gbps": r.Load.Verified.Median / 1e9, "ready_gbps": r.Load.Ready.Median / 1e9}
	}
	for _, l := range r.Lines {
		if row == fmt.Sprintf("%s%s/%d", rows, l.Class, l.Batch) {
			figures = map[string]float64{"tokens": l.TokensPerSecond.Median, "read_share": l.ReadShare, "ops_share": l.OpsShare}
		}
	}
	value := figures[metric]
	return value, value > 0
}
