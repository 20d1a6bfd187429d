package memorybench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// message is a line that a peer prints: of the opened device, of what it got, and of its end.
type message struct {
	Error   string `json:"error,omitempty"`   // why the device could not be opened, or what was refused
	Unclear string `json:"unclear,omitempty"` // what is wrong with the refusal
	Pieces  int    `json:"pieces"`
	Bytes   uint64 `json:"bytes"`
	Total   uint64 `json:"total"` // bytes of the whole device; 0: not known
}

// Peer is the other end of a run: it opens a device, and at each line that it reads it goes on: asks for memory in pieces
// until it is refused, then gives all back. Each time it prints one line. The end of its input is a line too.
func Peer(open func() (engine.Device, error), piece uint64, in io.Reader, out io.Writer) (err error) {
	lines, said := bufio.NewScanner(in), json.NewEncoder(out)
	dev, err := open()
	if err != nil {
		return said.Encode(message{Error: err.Error()})
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	info, err := dev.Info()
	if err != nil {
		return err
	}
	m := message{}
	if info.PhysicalTotal != nil {
		m.Total = *info.PhysicalTotal
	}
	if err := said.Encode(m); err != nil {
		return err
	}
	lines.Scan()
	h := hoard{dev: dev}
	defer func() { err = errors.Join(err, h.drop()) }()
	if unclear := errors.Join(h.fill(piece), h.agrees()); unclear != nil {
		m.Unclear = unclear.Error()
	}
	m.Error, m.Pieces, m.Bytes = fmt.Sprint(h.refusal), len(h.buffers), h.bytes
	if err := said.Encode(m); err != nil {
		return err
	}
	lines.Scan()
	return lines.Err()
}

// peerTimeout bounds the life of the peers.
const peerTimeout = 2 * time.Minute

// peer is a program that runs Peer.
type peer struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
	log  bytes.Buffer
	said message
}

// processes lets several processes ask for everything at once.
func (r *run) processes(ctx context.Context) (text string, err error) {
	if err := r.shared(); err != nil {
		return "", err
	}
	if len(r.setup.Peer) == 0 {
		return "", skip("there is no program to run beside this one")
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	var peers []*peer
	defer func() {
		for _, p := range peers {
			err = errors.Join(err, p.end())
		}
	}()
	var open []*peer
	for range r.cfg.Contexts {
		p, err := startPeer(ctx, r.setup.Peer)
		if err != nil {
			return "", err
		}
		peers = append(peers, p)
		if err := p.hear(); err != nil {
			return "", err
		}
		if p.said.Error == "" {
			open = append(open, p)
		} else {
			text += fmt.Sprintf("one could not open the device: %s; ", p.said.Error)
		}
	}
	if len(open) == 0 {
		return "", fmt.Errorf("no process could open the device: %s", text)
	}
	sum, total := uint64(0), open[0].said.Total
	for _, p := range open {
		if _, err := fmt.Fprintln(p.in, "take"); err != nil {
			return "", err
		}
	}
	var counts []string
	for _, p := range open {
		if err := p.hear(); err != nil {
			return "", err
		}
		if p.said.Unclear != "" {
			return "", fmt.Errorf("a process: %s", p.said.Unclear)
		}
		sum += p.said.Bytes
		counts = append(counts, fmt.Sprint(p.said.Pieces))
	}
	if sum == 0 {
		return "", fmt.Errorf("%d processes got nothing: %s", len(open), open[0].said.Error)
	}
	if total > 0 && sum > total {
		return "", fmt.Errorf("%d processes count %d bytes together, and the device has %d", len(open), sum, total)
	}
	return fmt.Sprintf("%s%s pieces of %s, then: %s", text, strings.Join(counts, " + "), sizeName(r.cfg.Piece),
		open[0].said.Error), nil
}

func startPeer(ctx context.Context, argv []string) (*peer, error) {
	p := &peer{cmd: exec.CommandContext(ctx, argv[0], argv[1:]...)}
	p.cmd.Stderr = &p.log
	p.cmd.WaitDelay = time.Second
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = in, json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a process beside this one: %w", err)
	}
	return p, nil
}

// hear reads the next line of a peer.
func (p *peer) hear() error {
	p.said = message{}
	if err := p.out.Decode(&p.said); err != nil {
		return fmt.Errorf("a process beside this one said nothing: %w", err)
	}
	return nil
}

// end closes the peer's input and waits for its end, which is an error unless everything was given back.
func (p *peer) end() error {
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("a process beside this one: %w: %s", err, strings.TrimSpace(p.log.String()))
	}
	return nil
}
