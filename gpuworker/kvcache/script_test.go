package kvcache

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/scripttest"
)

// A script is lines of commands. The lines "-> ..." after one are its outcome, and -update rewrites
// them. A token is a letter, a capital one if the decode kernels computed it. A sequence keeps its
// salt and tokens from begin on.
//
//	cache blocks=N size=N
//	begin NAME TOKENS [salt=S] [bypass]
//	more NAME TOKENS
//	grow NAME N, publish NAME N, claim NAME, own NAME POSITION, release NAME, fork NEW FROM
//	computing TOKENS [salt=S]
//	name NAME KEY:TOKENS...
//	changes
//	tree
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T, text string) string {
		t.Helper()
		s := &script{t: t, live: map[string]*scriptSequence{}}
		return s.play(text)
	})
}

type script struct {
	t    *testing.T
	c    *Cache
	live map[string]*scriptSequence
}

type scriptSequence struct {
	table *Table
	root  Root
	ids   []int32
}

func (s *script) play(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "-> ") {
			continue
		}
		out.WriteString(line)
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		for _, outcome := range s.command(words) {
			fmt.Fprintf(&out, "-> %s\n", outcome)
		}
		tables := []*Table{}
		for _, q := range s.live {
			tables = append(tables, q.table)
		}
		check(s.t, s.c, tables)
	}
	return out.String()
}

func (s *script) command(words []string) []string {
	options := map[string]string{}
	words = slices.DeleteFunc(words, func(w string) bool {
		key, value, option := strings.Cut(w, "=")
		if option {
			options[key] = value
		}
		return option
	})
	root := Root{Salt: options["salt"]}
	switch words[0] {
	case "cache":
		s.c = New(Config{Blocks: s.number(options["blocks"]), BlockSize: s.number(options["size"])})
		return nil
	case "computing":
		return one("%t", computing(s.c, root, tokens(words[1])))
	case "changes":
		added, removed, reset := s.c.Changes()
		return one("came %v, went %v, reset %t", added, removed, reset)
	case "tree":
		return s.tree()
	case "begin":
		q := &scriptSequence{root: root, ids: tokens(words[2]), table: &Table{}}
		s.live[words[1]] = q
		if slices.Contains(words, "bypass") {
			return one("begins without the cache; %s", s.room())
		}
		q.table = s.c.Match(q.root, q.ids)
		return one("%d tokens cached, in blocks %v; %s", q.table.Shared*s.c.BlockSize(), q.table.Blocks, s.room())
	case "fork":
		from := s.live[words[2]]
		q := &scriptSequence{root: from.root, ids: slices.Clone(from.ids), table: s.c.Fork(from.table)}
		s.live[words[1]] = q
		return one("blocks %v; %s", q.table.Blocks, s.room())
	}
	require.Contains(s.t, s.live, words[1], words)
	return s.ofSequence(words[0], words[1], s.live[words[1]], words[2:])
}

func (s *script) ofSequence(verb, name string, q *scriptSequence, words []string) []string {
	switch verb {
	case "more":
		q.ids = append(q.ids, tokens(words[0])...)
		return nil
	case "grow":
		if !s.c.Grow(q.table, s.number(words[0])) {
			return one("no; %s", s.room())
		}
		return one("blocks %v; %s", q.table.Blocks, s.room())
	case "publish":
		if err := s.c.Publish(q.table, q.root, q.ids, s.number(words[0])); err != nil {
			return one("%v", err)
		}
		return one("%d blocks are shared; %s", q.table.Shared, s.room())
	case "claim":
		s.c.Claim(q.table, q.root, q.ids)
		return one("claims %d blocks", len(q.table.claims))
	case "own":
		switch src, dst, copied, ok := s.c.Own(q.table, s.number(words[0])); {
		case !ok:
			return one("no; %s", s.room())
		case copied:
			return one("copy %d to %d, blocks %v, %d shared; %s", src, dst, q.table.Blocks, q.table.Shared, s.room())
		default:
			return one("its own already")
		}
	case "name":
		var keys []Key
		for _, w := range words {
			key, n, _ := strings.Cut(w, ":")
			keys = append(keys, Key{Key: uint64(s.number(key)), Tokens: s.number(n)})
		}
		s.c.Name(q.table, keys)
		return one("keys %v are told", s.c.All())
	case "release":
		err := s.c.Release(q.table)
		if errors.Is(err, ErrReleased) {
			delete(s.live, name)
		}
		if err != nil {
			return one("%v", err)
		}
		return one("%s", s.room())
	default:
		require.FailNow(s.t, "unknown command", verb)
		return nil
	}
}

// tree lists the nodes by their tokens, with their holders.
func (s *script) tree() []string {
	var lines []string
	for n := range liveNodes(s.t, s.c) {
		text, salt := "", ""
		for at := n; at != none; at = s.c.tree.nodes[at].parent {
			text = letters(s.c.tree.idsOf(at)) + " " + text
			salt = s.c.tree.nodes[at].salt
		}
		x := s.c.tree.nodes[n]
		state := "is being computed"
		switch {
		case x.block != none && s.c.refs[x.block] == 0:
			state = fmt.Sprintf("in block %d, idle", x.block)
		case x.block != none:
			state = fmt.Sprintf("in block %d, held %d times", x.block, s.c.refs[x.block])
		}
		if salt != "" {
			salt = "salt " + salt + ": "
		}
		lines = append(lines, salt+text+state)
	}
	slices.Sort(lines)
	return lines
}

func (s *script) room() string {
	return fmt.Sprintf("%d free, %d of them cached", s.c.Free(), s.c.Cached())
}

func (s *script) number(text string) int {
	s.t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(s.t, err)
	return n
}

func one(format string, args ...any) []string { return []string{fmt.Sprintf(format, args...)} }

func tokens(text string) []int32 {
	var ids []int32
	for _, r := range text {
		switch {
		case r == '.': // no token: it lets a script show where blocks end
		case 'A' <= r && r <= 'Z':
			ids = append(ids, r-'A'+'a'|Decoded)
		default:
			ids = append(ids, r)
		}
	}
	return ids
}

func letters(ids []int32) string {
	var text strings.Builder
	for _, id := range ids {
		if id&Decoded != 0 {
			id = id&^Decoded - 'a' + 'A'
		}
		text.WriteRune(id)
	}
	return text.String()
}
