package rig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// section is one scenario; its text is what came of it.
type section struct {
	name string
	run  func(*rig, context.Context) (string, error)
}

// sections in the order in which they run.
var sections = []section{
	{"kill", (*rig).kill}, {"freeze", (*rig).freeze}, {"partition", (*rig).partition}, {"drain", (*rig).drain},
	{"scheduler", (*rig).scheduler}, {"restart", (*rig).restart}, {"recreate", (*rig).recreate},
}

// rig is a project that is up and what it must answer.
type rig struct {
	cfg     Config
	docker  docker
	entries []*entry
	stories []story
	resume  time.Duration // what it takes undisturbed
}

// story is a request and its undisturbed answer.
type story struct {
	request *pb.GenerateRequest
	want    answer
}

// beginnings of the stories, all of one model.
var beginnings = []string{"Once upon a time", "Tom had a big red", "The little cat", "One day, a bird", "Lily and Ben"}

// Run runs the sections. It tells the report's Head and each Result as soon as it is there. The report is ErrBroken if one fails; the others
// run all the same, unless the undisturbed fleet does not answer.
func Run(ctx context.Context, cfg Config, tell func(fmt.Stringer)) (*Report, error) {
	r := &rig{cfg: cfg, docker: docker{cfg.Project, cfg.Service}}
	defer func() {
		for _, e := range r.entries {
			_ = e.conn.Close()
		}
	}()
	for i, address := range cfg.Schedulers {
		e, err := dial(fmt.Sprintf("scheduler-%d", i), address, cfg.Model)
		if err != nil {
			return nil, err
		}
		r.entries = append(r.entries, e)
	}
	watching, stop := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer stop()
	for _, e := range r.entries {
		watchers.Go(func() { e.watch(watching) })
	}

	report := &Report{Head: cfg.head()}
	tell(report.Head)
	for _, s := range slices.Concat([]section{{"start", (*rig).start}}, sections) {
		first := len(report.Sections) == 0
		if !first && len(cfg.Only) > 0 && !slices.Contains(cfg.Only, s.name) {
			continue
		}
		began := time.Now()
		text, err := s.tried(ctx, r)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		result := Result{Section: s.name, OK: err == nil, Seconds: time.Since(began).Seconds(), Text: text}
		if err != nil {
			result.Text = plainText(text, err)
		}
		tell(result)
		report.Sections = append(report.Sections, result)
		if first && err != nil {
			break
		}
	}
	return report, nil
}

// errIdle says that what was broken cut no stream, so that a section showed nothing: programs that break containers take their time
// on a busy machine, in which streams come to their ends. Such a section is tried again.
var errIdle = errors.New("nothing was at stake")

// tried runs a section until something was at stake, three times at most.
func (s section) tried(ctx context.Context, r *rig) (text string, err error) {
	for range 3 {
		if text, err = s.run(r, ctx); !errors.Is(err, errIdle) {
			break
		}
	}
	return text, err
}

// plainText is what was seen and what was wrong, on one line.
func plainText(text string, err error) string {
	wrong := strings.ReplaceAll(err.Error(), "\n", "; ")
	if text == "" {
		return wrong
	}
	return wrong + " (" + text + ")"
}

// ask is a request for exactly so many tokens, of which every one is drawn.
func ask(model string, seed uint64, tokens int) *pb.GenerateRequest {
	return &pb.GenerateRequest{
		Model: model, Input: &pb.GenerateRequest_Prompt{Prompt: beginnings[seed%uint64(len(beginnings))]},
		Sampling: &pb.Sampling{
			Seed: proto.Uint64(seed), Temperature: proto.Float32(0.9), TopP: proto.Float32(0.95), RepetitionPenalty: proto.Float32(1.1),
		},
		Stopping: &pb.Stopping{MaxTokens: proto.Int32(int32(tokens)), IgnoreEos: proto.Bool(true)},
	}
}

// start waits until every scheduler shows every worker under its name, and takes the answers of the undisturbed fleet, through
// every scheduler the same.
func (r *rig) start(ctx context.Context) (string, error) {
	if err := r.named(ctx); err != nil {
		return "", err
	}
	r.stories = make([]story, r.cfg.Streams)
	for through := range r.entries {
		errs := make([]error, len(r.stories))
		var all sync.WaitGroup
		var seen board
		for i := range r.stories {
			all.Go(func() {
				s := &r.stories[i]
				s.request = ask(r.cfg.Model, uint64(i), r.cfg.Tokens)
				c := client{entries: r.entries, home: through, board: &seen}
				a, err := c.ask(ctx, s.request)
				switch {
				case err != nil:
					errs[i] = fmt.Errorf("seed %d %w", i, err)
				case through == 0:
					s.want = a.answer
				default:
					if how := a.differs(&s.want); how != "" {
						errs[i] = fmt.Errorf("seed %d differs between undisturbed schedulers: %s", i, how)
					}
				}
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return "", err
		}
		if _, n := seen.spread(); n < min(r.cfg.Workers, r.cfg.Streams) {
			return "", fmt.Errorf("%s gave %d streams at once to %d of %d workers", r.entries[through].name, len(r.stories), n, r.cfg.Workers)
		}
	}
	if err := r.resumes(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d schedulers show %s to %s and give %d streams the same tokens; all resumed at once have the next in %s",
		len(r.entries), r.worker(1), r.worker(r.cfg.Workers), len(r.stories), seconds(r.resume)), nil
}

// under lets clients ask while something is broken, and says what came of it. Clients that move go to another scheduler when
// theirs is not there.
func (r *rig) under(ctx context.Context, moves bool, disturb func(context.Context, *load) (string, error)) (string, *tally, error) {
	if err := r.whole(ctx); err != nil {
		return "", nil, fmt.Errorf("before anything was broken: %w", err)
	}
	l := r.begin(ctx, moves)
	var text string
	err := l.running(ctx, r.cfg.Workers, r.cfg.Streams/2)
	if err == nil {
		text, err = disturb(ctx, l)
	}
	t := l.end()
	if wrong := t.err(); wrong != nil {
		if errors.Is(err, errIdle) { // then there was
			err = nil
		}
		err = errors.Join(wrong, err)
	} else {
		text = strings.Trim(text+"; "+t.String(), "; ")
	}
	return text, t, err
}
