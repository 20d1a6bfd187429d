package command

import (
	"fmt"

	"github.com/millrace/millrace/services/bench/internal/gauge"
)

// row is this load as floors name it: MODEL/MIX/alone, or MODEL/MIX/joined-by-PROMPTxPERIOD.
func (r *loadRun) row() string {
	company := "alone"
	if r.joiners.prompt > 0 {
		company = "joined-by-" + r.join
	}
	mix := gauge.Mix{Sequences: r.concurrency, Prompt: r.promptTokens, Tokens: r.maxTokens}
	return fmt.Sprintf("%s/%s/%s", r.target.Model, mix, company)
}

// figures are the metrics that floors may bound.
func (r *loadReport) figures() map[string]float64 {
	out := map[string]float64{
		"tokens": r.TokensPerSecond, "first_token_p50_ms": r.TTFT.P50, "inter_token_p50_ms": r.InterToken.P50,
		"inter_token_p99_ms": r.InterToken.P99, "failed": float64(r.Failed),
	}
	if r.Engine != nil {
		out["engine_share"] = r.Engine.Share
	}
	if r.Idle != nil {
		out["idle_share"] = r.Idle.Share
	}
	return out
}
