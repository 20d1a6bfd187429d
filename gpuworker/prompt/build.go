package prompt

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
)

// Build returns the request for a model. It returns ErrNoTokenizer, ErrNoTemplate, ErrNoTokens,
// batch.ErrTooLong, a *ContextError, the errors of a template, a *generate.ResumeError for too many
// resumed tokens, or the cause of ctx. The request holds no more than one context for each sequence
// and the options' own lists.
func Build(ctx context.Context, e *Encoder, m Model, in Input, o Options) (generate.Request, error) {
	if m.Tokenizer == nil && (!o.NoText || len(in.IDs) == 0) {
		return generate.Request{}, fmt.Errorf("%w: %q works by token ids: give token_ids and set response.token_ids_only",
			ErrNoTokenizer, m.Name)
	}
	ids, err := e.ids(ctx, m, o.Schedule.Tenant, in)
	if errors.Is(err, batch.ErrTooLong) && o.Context > m.Context {
		err = &ContextError{Model: m.Name, Context: m.Context} // a longer context may hold it
	}
	if err != nil {
		return generate.Request{}, err
	}
	most, err := m.fit(len(ids), o)
	if err != nil {
		return generate.Request{}, err
	}
	if err := fitResume(o.Resume, most); err != nil {
		return generate.Request{}, err
	}
	stops := o.StopIDs
	if !o.IgnoreEnds {
		stops = slices.Concat(stops, m.EndIDs)
	}
	r := generate.Request{
		Prompt: ids, Digest: Digest(ids), Class: o.Class, Params: o.params(), Sequences: o.Sequences, MaxTokens: most,
		Stop: o.Stop, StopIDs: sorted(stops), IncludeStop: o.IncludeStop, NoText: o.NoText, Parts: o.Parts, Mark: o.Mark, CallID: o.CallID,
		Grammar: o.Grammar, UsualSpelling: o.Grammar != nil && o.Allowed == nil && len(o.Bias) == 0,
		Logprobs: o.Logprobs, PromptTopN: o.PromptTopN, Progress: o.Progress, Schedule: o.Schedule, Resume: o.Resume,
	}
	if r.Grammar != nil && !r.Grammar.CanEnd(r.StopIDs) {
		return generate.Request{}, ErrNoEnd
	}
	if r.Params.MinTokens > 0 {
		r.Params.Suppressed = r.StopIDs
	}
	forbid(&r.Params, m.SuppressedIDs, m.Vocabulary)
	return r, nil
}

// fit returns how many tokens may follow a prompt of n tokens. If Options.Context is set, the
// result depends on it and not on the model's context: equal requests then have equal lengths and
// equal refusals on every worker, or a *ContextError.
func (m Model) fit(n int, o Options) (most int, err error) {
	if o.Context == 0 {
		return m.Loop.Fit(n, o.MaxTokens)
	}
	if most, err = batch.Fit(n, o.MaxTokens, o.Context); err != nil {
		return 0, err
	}
	if room, err := m.Loop.Fit(n, most); err != nil || room < most {
		return 0, &ContextError{Model: m.Name, Context: m.Context, Needed: n + most}
	}
	return most, nil
}

// fitResume refuses entries with more tokens than a continuation may have.
func fitResume(entries []generate.Resume, most int) error {
	for i, r := range entries {
		if len(r.IDs) > most {
			return &generate.ResumeError{Entry: i, Token: most, TooLong: true, Problem: fmt.Sprintf(
				"is beyond the end: a continuation of this request has at most %d tokens, and %d are given", most, len(r.IDs))}
		}
	}
	return nil
}

// params are the sampling parameters. A request without a seed gets a random one.
func (o Options) params() engine.SlotParams {
	p := engine.SlotParams{
		MinTokens: o.MinTokens, TopN: o.Candidates, Temperature: o.Temperature, TopK: o.TopK, TopP: o.TopP, MinP: o.MinP,
		TypicalP: o.TypicalP, RepetitionPenalty: o.RepetitionPenalty, PresencePenalty: o.PresencePenalty,
		FrequencyPenalty: o.FrequencyPenalty, PenaltyWindow: o.PenaltyWindow,
		Allowed: sorted(o.Allowed),
	}
	p.BiasIDs, p.BiasValues = ordered(o.Bias)
	if o.Seed != nil {
		p.Seed = *o.Seed
		return p
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	p.Seed = binary.LittleEndian.Uint64(b[:])
	return p
}

// sorted returns the distinct ids in ascending order; nil stays nil. It does not modify ids.
func sorted(ids []int32) []int32 {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Digest is BLAKE3 of ids as little-endian uint32, in hex.
func Digest(ids []int32) string {
	raw := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(id))
	}
	sum := blake3.Sum256(raw)
	return hex.EncodeToString(sum[:])
}
