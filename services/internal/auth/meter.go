package auth

import "context"

// Meter is told what a call uses. A nil one, of a server without keys, is told in vain. Safe for concurrent use.
type Meter struct{ of *account }

// meterKey is the context key of *Meter.
type meterKey struct{}

// MeterOf is that of the call that ctx belongs to; nil where nobody counts.
func MeterOf(ctx context.Context) *Meter {
	m, _ := ctx.Value(meterKey{}).(*Meter)
	return m
}

// Add counts tokens, of a prompt or generated. It does nothing but add, so that it may be called for each.
func (m *Meter) Add(tokens int64) {
	if m != nil && tokens > 0 {
		m.of.spend(tokens)
	}
}
