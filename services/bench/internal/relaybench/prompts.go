package relaybench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/services/bench/internal/machine"
)

// PromptsConfig is the configuration of Prompts.
type PromptsConfig struct {
	Programs
	Kinds      []string      // of prompts: ids, text or both
	Bytes      int           // of a prompt as text; one of ids has a quarter as many ids
	Callers    int           // in a closed loop, each with a connection of its own
	Workers    int           // that the callers share, each of which has a place of its own on one
	FirstToken time.Duration // what a worker takes to compute a prompt of ids
	Rounds     int           // each way has its turn in every round
	Duration   time.Duration // of a turn
}

// Kinds of prompts.
const (
	kindIDs  = "ids"
	kindText = "text"
)

const (
	// bytesPerID is about what a token of English stands for.
	bytesPerID = 4
	// maxPromptBytes leaves a prompt of ids one step of a worker.
	maxPromptBytes = bytesPerID << 16
)

// Validate reports everything that is wrong.
func (c *PromptsConfig) Validate() error {
	wrong := []error{
		c.wrong(),
		within("--bytes", c.Bytes, maxPromptBytes),
		within("--callers", c.Callers, 1<<10),
		within("--workers", c.Workers, 1<<10),
		within("--rounds", c.Rounds, 1<<10),
	}
	if c.Callers < c.Workers {
		wrong = append(wrong, fmt.Errorf("--workers %d: want one caller at least for each, and there are %d", c.Workers, c.Callers))
	}
	if len(c.Kinds) == 0 {
		wrong = append(wrong, fmt.Errorf("--kinds names none: want %s, %s or both", kindIDs, kindText))
	}
	for _, kind := range c.Kinds {
		if kind != kindIDs && kind != kindText {
			wrong = append(wrong, fmt.Errorf("--kinds %q: want %s, %s or both", kind, kindIDs, kindText))
		}
	}
	if slices.Contains(c.Kinds, kindText) && c.Model == "" {
		wrong = append(wrong, errors.New("--kinds text: name a --model that has a tokenizer and a context of so long a text"))
	}
	if c.FirstToken < time.Millisecond || c.FirstToken > time.Minute {
		wrong = append(wrong, fmt.Errorf("--first-token %v: want 1ms to 1m", c.FirstToken))
	}
	if c.Duration < 3*c.FirstToken || c.Duration > time.Hour {
		wrong = append(wrong, fmt.Errorf("--duration %v: want three times --first-token (%v) at least, and 1h at most", c.Duration, c.FirstToken))
	}
	return errors.Join(wrong...)
}

// ids is how many ids a prompt of ids has.
func (c *PromptsConfig) ids() int { return max(c.Bytes/bytesPerID, 1) }

// device is the sim engine's options: time passes by the tokens of the prompt, in however many steps they are computed.
func (c *PromptsConfig) device() string {
	return fmt.Sprintf("sim:step=0s,prefill=%v,decode=0s", c.FirstToken/time.Duration(c.ids()))
}

// models is how many models every worker has: one for each caller that it serves.
func (c *PromptsConfig) models() int { return (c.Callers + c.Workers - 1) / c.Workers }

// modelOf is the model that a caller asks for: no more callers ask for one than workers have it.
func (c *PromptsConfig) modelOf(caller int) string {
	r := rig{models: c.models()}
	return r.names()[caller%c.models()]
}

// rig has workers with as many places in all as there are callers, one for each model of each: no call waits for another's, and a
// first token is as late as it is wanted, whenever its call comes. A worker for each caller would fill a small machine by telling the
// scheduler that nothing has happened.
func (c *PromptsConfig) rig() rig {
	const spare = 64 // tokens: the rest of a last block, and a block more
	tokens := c.ids()
	if slices.Contains(c.Kinds, kindText) {
		tokens = max(c.Bytes/2, 1) // no text of words has more
	}
	programs := c.Programs
	programs.Connections = c.models() // to each worker
	return rig{
		Programs: programs, workers: c.Workers, models: c.models(), callers: c.Callers, device: c.device(),
		flags:    []string{"--max-batched-tokens", fmt.Sprint(maxPromptBytes / bytesPerID)},
		kvTokens: uint64(tokens + spare), context: uint32(tokens + spare), sequences: 1,
	}
}

// Prompts measures what the scheduler adds to the first token of large prompts that callers send in a closed loop, to the same
// calls sent to the workers themselves. A call that fails is ErrFailed.
func Prompts(ctx context.Context, c PromptsConfig, tell func(format string, args ...any)) (_ *PromptsReport, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &PromptsReport{Machine: machine.Look(), Callers: c.Callers, Workers: c.Workers, Bytes: c.Bytes, FirstToken: c.FirstToken.Seconds() * 1e3}
	tell("starting %d workers and a scheduler", c.Workers)
	m, err := begin(ctx, c.rig())
	defer func() { err = errors.Join(err, m.fleet.stop()) }()
	if err != nil {
		return nil, err
	}
	if slices.Contains(c.Kinds, kindText) && !m.fleet.target.Tokenizer {
		return nil, fmt.Errorf("--kinds text: the model %s has no tokenizer", c.Model)
	}
	for _, kind := range c.Kinds {
		var rounds []promptRound
		for round := range c.Rounds {
			taken, err := m.promptRound(ctx, &c, kind, round, tell)
			if err != nil {
				return nil, err
			}
			rounds = append(rounds, taken)
		}
		r.Kinds = append(r.Kinds, sumPrompts(kind, rounds))
	}
	return r, nil
}

// promptRound is a turn of each way.
func (m *measurement) promptRound(ctx context.Context, c *PromptsConfig, kind string, round int,
	tell func(format string, args ...any)) (taken promptRound, err error) {
	alone := way{name: direct}
	for i := range c.Callers {
		alone.conns = append(alone.conns, m.fleet.direct[i/c.models()].conns[i%c.models()])
	}
	for k := range 2 {
		w, to := &alone, &taken.direct
		if (round+k)%2 == 1 { // neither is always the first
			w, to = &m.fleet.scheduler, &taken.through
		}
		tell("%s, round %d of %d, %s", kind, round+1, c.Rounds, w.name)
		before, err := m.fleet.scheduler.program.CPU()
		if err != nil {
			return taken, err
		}
		if *to, err = m.loop(ctx, c, w, kind, round); err != nil {
			return taken, err
		}
		after, err := m.fleet.scheduler.program.CPU()
		if err != nil {
			return taken, err
		}
		if w == &m.fleet.scheduler {
			taken.cpu = after - before
		}
	}
	return taken, nil
}
