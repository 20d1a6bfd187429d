package auth

import "context"

// Meter counts the tokens of a call. A nil Meter, of a server without keys, does nothing. It is
// safe for concurrent use.
type Meter struct{ account *account }

// meterKey is the context key of *Meter.
type meterKey struct{}

// MeterOf returns the Meter of the call of ctx, or nil if none exists.
func MeterOf(ctx context.Context) *Meter {
	m, _ := ctx.Value(meterKey{}).(*Meter)
	return m
}

// Add counts tokens of a prompt, or generated tokens. It is a single addition, so it may be called
// for each token.
func (m *Meter) Add(tokens int64) {
	if m != nil && tokens > 0 {
		m.account.addTokens(tokens)
	}
}
