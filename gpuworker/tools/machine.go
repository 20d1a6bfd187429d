package tools

// mode is what the bytes of a state are.
type mode uint8

const (
	skip      mode = iota // syntax, which is no part
	content               // text of the answer
	reasoning             // text of the reasoning
	name                  // name of a tool
	header                // header of a message, see harmonyHeader
	object                // a JSON object, the arguments
	pairs                 // an object of Gemma's notation, the arguments
	key                   // name of an argument
	value                 // an argument as raw text, see xmlValue
)

// state is a state of a machine: what its bytes are, and the marks that end it.
type state struct {
	mode mode
	// lead are marks that end the state if they are first in it, white space aside. If none is, the state
	// goes on; skipLead drops the white space then.
	lead     []exit
	skipLead bool
	// exits are marks that end the state wherever they are.
	exits []exit
	// trim drops white space before a mark.
	trim bool
	// to follows an object, which ends by itself.
	to int
}

// exit is a mark, and the state behind it.
type exit struct {
	mark string
	to   int
	do   action
}

// action is done when a state ends.
type action uint8

const (
	nothing    action = iota
	startCall         // a call of the tool that was named
	startPairs        // the same, and the mark is the first byte of its arguments

	shutObject // } of the arguments
	startValue // an argument that was named
	endValue   // its end
	readHeader // see harmonyHeader
	keepMark   // the mark belongs to the state behind it
)

// machine is the table of a format's states, for one vocabulary.
type machine struct {
	states []state
	start  int
	// opened is the state behind a prompt that opens the reasoning, and closed behind one that ends it.
	opened, closed int
	quote          string // begins and ends a text of Gemma's notation
	marks          []string
}
