package batch

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Pooling is how the hidden rows of a prompt become one vector.
type Pooling int

// Poolings.
const (
	NoPool    Pooling = iota
	PoolMean          // the mean of all positions
	PoolFirst         // the first position
	PoolLast          // the last position
)

// pool collects the hidden rows of a sequence. It stays when the sequence is preempted: rows that
// were delivered are not computed again, so each position counts once.
//
// The mean is a float64 sum in the order of positions. It therefore depends neither on the chunks
// of the prompt nor on what else is in a step.
type pool struct {
	rows int // delivered
	sum  []float64
}

// checkPooled refuses a request for a vector or for choices that the loop cannot compute.
func (l *Loop) checkPooled(r *Request) error {
	if l.cfg.WholeTexts {
		if err := l.checkWhole(r); err != nil {
			return err
		}
	}
	switch {
	case r.Pool == NoPool && len(r.Choices) == 0:
		return nil
	case r.Pool < NoPool || r.Pool > PoolLast:
		return fmt.Errorf("%w: pooling %d", engine.ErrInvalid, r.Pool)
	case r.MaxTokens != 0 || r.PromptTopN >= 0 || len(r.Continuations) != 1 || r.Pool != NoPool && len(r.Choices) > 0:
		return fmt.Errorf("%w: a request for a vector or for choices has one continuation without tokens and scores", engine.ErrInvalid)
	case len(r.Choices) > l.cfg.Runner.MaxScoreRows:
		return fmt.Errorf("%w: %d choices, at most %d", engine.ErrInvalid, len(r.Choices), l.cfg.Runner.MaxScoreRows)
	case r.Pool != NoPool && l.cfg.Runner.MaxHiddenRows == 0:
		return fmt.Errorf("%w: this engine gives no hidden rows, of which vectors are made", engine.ErrUnsupported)
	}
	return nil
}

// checkWhole refuses what a model of whole texts does not compute: tokens, scores of them, and a text
// that no step holds. Its blocks say nothing of other texts, so it does not use the prefix cache.
func (l *Loop) checkWhole(r *Request) error {
	most := l.cfg.Runner.MaxBatchedTokens
	if r.Pool == PoolMean {
		most = min(most, l.cfg.Runner.MaxHiddenRows)
	}
	switch {
	case r.Pool == NoPool || r.Class != engine.Prefill:
		return fmt.Errorf("%w: the layers of this model see later positions, so it computes vectors of whole texts alone", engine.ErrInvalid)
	case len(r.Prompt) > most:
		return fmt.Errorf("%w: it has %d tokens; a text of this model is computed in one step, which has at most %d", ErrTooLong,
			len(r.Prompt), most)
	}
	r.Bypass = true
	return nil
}

// wantsHidden reports whether the hidden row of a position is wanted and not delivered.
func (s *sequence) wantsHidden(position int) bool {
	switch s.request.Pool {
	case PoolMean:
		return position >= s.pool.rows
	case PoolFirst:
		return position == 0 && s.pool.rows == 0
	case PoolLast:
		return position == s.promptLength-1
	case NoPool:
	}
	return false
}

// hiddenRows is the number of hidden rows of the next n tokens.
func (s *sequence) hiddenRows(n int) int {
	switch {
	case s.request.Pool == PoolMean:
		return max(0, s.submitted+n-max(s.submitted, s.pool.rows))
	case s.request.Pool == PoolFirst && s.wantsHidden(s.submitted),
		s.request.Pool == PoolLast && s.submitted+n == s.promptLength:
		return 1
	}
	return 0
}

// unpooled returns the first position whose hidden row is still wanted, and whether positions from
// it on must be computed for that. The last position of a prompt is always computed.
func (s *sequence) unpooled() (int, bool) {
	switch s.request.Pool {
	case PoolMean:
		return min(s.pool.rows, s.promptLength-1), true
	case PoolFirst:
		return 0, s.pool.rows == 0
	case NoPool, PoolLast:
	}
	return 0, false
}

// add adds n hidden rows, which follow those that were added before. It returns ErrBadLogits for a
// number that is not finite.
func (p *pool) add(rows []float32, n int) error {
	if n == 0 {
		return nil
	}
	width := len(rows) / n
	if p.sum == nil {
		p.sum = make([]float64, width)
	}
	for i, v := range rows {
		v := float64(v)
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%w: in hidden row %d", ErrBadLogits, p.rows+i/width)
		}
		p.sum[i%width] += v
	}
	p.rows += n
	return nil
}

// vector returns the mean of the rows; nil without rows.
func (p *pool) vector() []float32 {
	if p.rows == 0 {
		return nil
	}
	out := make([]float32, len(p.sum))
	for i, v := range p.sum {
		out[i] = float32(v / float64(p.rows))
	}
	return out
}
