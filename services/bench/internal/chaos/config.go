package chaos

import (
	"errors"
	"fmt"
	"time"
)

// Config of a run.
type Config struct {
	Scheduler, Worker string   // paths of the programs
	Models, Model     string   // folder of model files, and the one that serves
	Devices           []string // of the workers, in turn; as the worker's --device
	Workers           int
	MaxSequences      int // that each worker has places for
	Streams           int // always open
	Requests          int // different ones, used in turn
	Prompt, Answer    int // tokens of the longest prompts and answers

	Duration time.Duration // of faults on workers
	Every    time.Duration // from one to the next
	AtMost   int           // so many; 0: as many as the duration has room for
	Kinds    []Kind
	Restart  time.Duration // after a kill
	Restore  time.Duration // after a freeze or a cut

	SchedulerKills int           // one of the schedulers, in turn, while clients resume on the other
	Grace          time.Duration // in which the last streams must end
	Seed           uint64
}

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var wrong []error
	count := func(name string, value, low, high int) {
		if value < low || value > high {
			wrong = append(wrong, fmt.Errorf("%s %d: want %d to %d", name, value, low, high))
		}
	}
	length := func(name string, value, low, high time.Duration) {
		if value < low || value > high {
			wrong = append(wrong, fmt.Errorf("%s %v: want %v to %v", name, value, low, high))
		}
	}
	count("--workers", c.Workers, 2, 64)
	count("--max-sequences", c.MaxSequences, 1, 1024)
	count("--streams", c.Streams, 1, 10_000)
	count("--requests", c.Requests, 1, 100_000)
	count("--prompt-tokens", c.Prompt, 1, 1<<20)
	count("--max-tokens", c.Answer, 4, 1<<20)
	count("--at-most", c.AtMost, 0, 1<<20)
	count("--scheduler-kills", c.SchedulerKills, 0, 1000)
	length("--duration", c.Duration, 0, 24*time.Hour)
	length("--every", c.Every, 100*time.Millisecond, time.Hour)
	length("--restart", c.Restart, 0, time.Hour)
	length("--restore", c.Restore, 0, time.Hour)
	length("--grace", c.Grace, time.Second, time.Hour)
	if c.Model == "" {
		wrong = append(wrong, errors.New("--model is empty: name a file of the models folder, without .gguf"))
	}
	if len(c.Kinds) == 0 && c.Duration > 0 {
		wrong = append(wrong, fmt.Errorf("--faults names none: want some of %v, or --duration 0", Kinds))
	}
	if c.Duration == 0 && c.SchedulerKills == 0 {
		wrong = append(wrong, errors.New("--duration 0 and --scheduler-kills 0: nothing would be hurt"))
	}
	return errors.Join(wrong...)
}
