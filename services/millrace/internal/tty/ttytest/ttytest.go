package ttytest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Buffer is a buffer that may be read while it is written. The zero value is empty.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Screen is a terminal: the program has TTY, a person sees Seen and types into Keyboard.
type Screen struct {
	TTY      *os.File
	Keyboard io.Writer
	Seen     *Buffer
}

// Open opens a pseudo terminal until the end of the test, and skips the test if the machine has none.
func Open(t *testing.T, columns, rows uint16) *Screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here (%v): mount devpts on /dev/pts", err)
	}
	raw, err := master.SyscallConn() // Fd would make it block, and Close would not end a read
	require.NoError(t, err)
	var number int
	var failed error
	require.NoError(t, raw.Control(func(fd uintptr) {
		if failed = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); failed == nil {
			number, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
		if failed == nil {
			failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
		}
	}))
	require.NoError(t, failed)
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	s := &Screen{TTY: tty, Keyboard: master, Seen: &Buffer{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(s.Seen, master) // until it is closed
	}()
	t.Cleanup(func() {
		_ = tty.Close()
		_ = master.Close()
		<-read
	})
	return s
}

// Poison would clear a screen and forge a line.
const Poison = "\x1b[2J\nmillrace: all is well\r\x07\u009b"

// Poisoned adds Poison to every text of m and of the messages in it, and returns m.
func Poisoned[M proto.Message](m M) M {
	poisonMessage(m.ProtoReflect())
	return m
}

func poisonMessage(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Kind() == protoreflect.StringKind && fd.IsList():
			for i := range v.List().Len() {
				v.List().Set(i, protoreflect.ValueOfString(Poison))
			}
		case fd.Kind() == protoreflect.StringKind:
			m.Set(fd, protoreflect.ValueOfString(v.String()+Poison))
		case fd.Kind() == protoreflect.MessageKind && fd.IsList():
			for i := range v.List().Len() {
				poisonMessage(v.List().Get(i).Message())
			}
		case fd.Kind() == protoreflect.MessageKind && !fd.IsMap():
			poisonMessage(v.Message())
		}
		return true
	})
}
