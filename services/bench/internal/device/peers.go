package device

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

// message is a line that a peer prints: after it opened the device, and after it filled it.
type message struct {
	Error   string `json:"error,omitempty"`   // the device could not be opened, or the last refusal
	Unclear string `json:"unclear,omitempty"` // the refusal or the counters are wrong
	Pieces  int    `json:"pieces"`
	Bytes   uint64 `json:"bytes"`
	Total   uint64 `json:"total"` // bytes of the whole device; 0: unknown
}

// Peer is the other process of a run. It opens a device. At the next line of its input it
// allocates pieces until one is refused, and at the line after that it frees them; it prints one
// message each time. The end of the input counts as a line.
func Peer(open func() (engine.Device, error), piece uint64, in io.Reader, out io.Writer) (err error) {
	lines, output := bufio.NewScanner(in), json.NewEncoder(out)
	dev, err := open()
	if err != nil {
		return output.Encode(message{Error: err.Error()})
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
	if err := output.Encode(m); err != nil {
		return err
	}
	lines.Scan()
	h := hoard{dev: dev}
	defer func() { err = errors.Join(err, h.free()) }()
	if unclear := errors.Join(h.fill(piece), h.agrees()); unclear != nil {
		m.Unclear = unclear.Error()
	}
	m.Error, m.Pieces, m.Bytes = fmt.Sprint(h.refusal), len(h.buffers), h.bytes
	if err := output.Encode(m); err != nil {
		return err
	}
	lines.Scan()
	return lines.Err()
}

// peerTimeout bounds the run time of the peers.
const peerTimeout = 2 * time.Minute

// peer is a program that runs Peer.
type peer struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
	log  bytes.Buffer
	last message
}

// processes lets several processes allocate everything at once.
func (r *run) processes(ctx context.Context) (text string, err error) {
	if err := r.shared(); err != nil {
		return "", err
	}
	if len(r.setup.Peer) == 0 {
		return "", skip("there is no program for other processes")
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
		if err := p.receive(); err != nil {
			return "", err
		}
		if p.last.Error == "" {
			open = append(open, p)
		} else {
			text += fmt.Sprintf("one could not open the device: %s; ", p.last.Error)
		}
	}
	if len(open) == 0 {
		return "", fmt.Errorf("no process could open the device: %s", text)
	}
	sum, total := uint64(0), open[0].last.Total
	for _, p := range open {
		if _, err := fmt.Fprintln(p.in, "take"); err != nil {
			return "", err
		}
	}
	var counts []string
	for _, p := range open {
		if err := p.receive(); err != nil {
			return "", err
		}
		if p.last.Unclear != "" {
			return "", fmt.Errorf("a process: %s", p.last.Unclear)
		}
		sum += p.last.Bytes
		counts = append(counts, fmt.Sprint(p.last.Pieces))
	}
	if sum == 0 {
		return "", fmt.Errorf("%d processes got nothing: %s", len(open), open[0].last.Error)
	}
	if total > 0 && sum > total {
		return "", fmt.Errorf("%d processes count %d bytes together, and the device has %d", len(open), sum, total)
	}
	return fmt.Sprintf("%s%s pieces of %s, then: %s", text, strings.Join(counts, " + "), sizeName(r.cfg.Piece),
		open[0].last.Error), nil
}

func startPeer(ctx context.Context, argv []string) (*peer, error) {
	p := &peer{cmd: exec.CommandContext(ctx, argv[0], argv[1:]...)}
	p.cmd.Stderr = &p.log
	p.cmd.WaitDelay = time.Second
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = stdin, json.NewDecoder(stdout)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a peer process: %w", err)
	}
	return p, nil
}

// receive reads the next line of a peer.
func (p *peer) receive() error {
	p.last = message{}
	if err := p.out.Decode(&p.last); err != nil {
		return fmt.Errorf("a peer process printed nothing: %w", err)
	}
	return nil
}

// end closes the peer's input and waits. It returns an error unless the peer freed everything and
// exited with 0.
func (p *peer) end() error {
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("a peer process: %w: %s", err, strings.TrimSpace(p.log.String()))
	}
	return nil
}
