"""The text of a PTX module as kernels: parameters, registers, variables in memory, instructions.

Only what nvcc makes of kernels/cuda is understood: no textures, and of functions only those whose result is one number;
they are put in the place of their calls. PTX is described in NVIDIA's "Parallel Thread Execution ISA".
"""
import collections
import functools
import re

BYTES = {'pred': 1, 'b8': 1, 'u8': 1, 's8': 1, 'b16': 2, 'u16': 2, 's16': 2, 'b32': 4, 'u32': 4, 's32': 4, 'f32': 4,
         'b64': 8, 'u64': 8, 's64': 8, 'f64': 8}
# How numpy stores a register or an operand of a type.
NUMPY = {'pred': '?', 'b8': 'u1', 'u8': 'u1', 's8': 'i1', 'b16': 'u2', 'u16': 'u2', 's16': 'i2', 'b32': 'u4', 'u32': 'u4',
         's32': 'i4', 'f32': 'f4', 'b64': 'u8', 'u64': 'u8', 's64': 'i8', 'f64': 'f8'}

VARIABLE = re.compile(r'^\s*(?:\.(?:visible|weak|extern|common)\s+)*\.(global|const|shared|local)\s+\.align\s+(\d+)\s+'
                      r'\.(\w+)\s+([\w$]+)(\[\d*\])?\s*(?:=\s*\{?([^;}]*)\}?\s*)?;', re.M)
PARAMETER = re.compile(r'\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)(?:\s+\.ptr[^,]*?)?\s+([\w$]+)(?:\[(\d+)\])?\s*(?:,|$)')
KERNEL = re.compile(r'\.entry\s+(?P<name>[\w$]+)\s*\((.*?)\)(.*?)\n\{(.*?)\n\}', re.S)
FUNCTION = re.compile(r'\.func\s*\(\.param\s+\.b\d+\s+(\w+)\)\s*(?P<name>\w+)\s*\(([^)]*)\)\s*\{(.*?)\n\}', re.S)
CALL = re.compile(r'\bcall(?:\.uni)?\s*\(\s*(\w+)\s*\),\s*(\w+),\s*\(([^)]*)\)\s*;')
REGISTERS = re.compile(r'\.reg\s+\.(\w+)\s+([^;]*);')
ARGUMENT = re.compile(r'\.param\s+\.(b\d+)\s+([\w$]+)\s*;')
ACCESS = re.compile(r'\b(?:ld|st)\.param\.(\w+)\s+([^,;{]+),\s*([^,;{]+);')
# Lists of operands, {%r1, %r2}, unlike the braces of a block of inline assembly.
OPERANDS = re.compile(r'\{(\s*(?:[%\w.$-]+)(?:\s*,\s*[%\w.$-]+)*\s*)\}')

Variable = collections.namedtuple('Variable', 'space align bytes data')
Instruction = collections.namedtuple('Instruction', 'predicate inverted op args text')


def variables(text):
    """name: Variable, of those outside all kernels, or of those of one kernel."""
    found = {}
    for space, align, kind, name, count, values in VARIABLE.findall(text):
        size = BYTES[kind]
        words = [int(word, 0) for word in values.split(',') if word.strip()]
        data = b''.join((word % (1 << 8 * size)).to_bytes(size, 'little') for word in words)
        elements = int(count[1:-1] or 0) if count else 1
        found[name] = Variable(space, int(align), elements * size, data)
    return found


def split_operands(text):
    """'%r1, [%r2+4], {%r3, %r4}' at the commas outside brackets."""
    return [part.strip() for part in re.split(r',(?![^\[<(]*[\])>])', text) if part.strip()]


def instruction(text):
    predicate = re.match(r'@(!?)(%\w+)\s+', text)
    rest = text[predicate.end():] if predicate else text
    op, _, args = rest.partition(' ')
    return Instruction(predicate and predicate[2], bool(predicate and predicate[1]), tuple(op.split('.')),
                       split_operands(args), text)


def inlined(body, functions):
    """The body with the bodies of functions instead of their calls: all names in one are its own, but for those of its
    arguments and its result."""
    def put(match):
        result, name, arguments = match.groups()
        if name not in functions:
            return match[0]  # unknown to the simulator if it runs
        returned, parameters, text = functions[name]
        own = f'{name}_{match.start()}'
        text = re.sub(r'(%)(?=(?:p|r|rs|rd|f|fd)[\d<])|(\$)(?=L)', rf'\1\2{own}_', text)
        names = [returned, *[parameter for _, _, parameter, _ in PARAMETER.findall(parameters)]]
        for inside, outside in zip(names, [result, *split_operands(arguments)]):
            text = re.sub(rf'\[{inside}\b', f'[{outside}', text)
        return re.sub(r'\bret;', f'bra ${own};', text) + f'\n${own}:\n'
    return CALL.sub(put, body)


class Kernel:
    def __init__(self, name, parameters, body):
        self.name = name
        self.read_parameters(parameters)
        self.variables = variables(body)
        self.registers = {}  # name: type
        for kind, names in REGISTERS.findall(body):
            for word in split_operands(names):
                many = re.match(r'(%\w+)<(\d+)>', word)
                self.registers.update({f'{many[1]}{i}': kind for i in range(int(many[2]))} if many else {word: kind})
        body = self.arguments_as_registers(body)
        self.numbers = {name: i for i, name in enumerate(self.registers)}
        self.read_code(REGISTERS.sub('', VARIABLE.sub('', body)))

    def arguments_as_registers(self, body):
        """Arguments and results of calls are memory of their own; here they are registers that are moved to and from."""
        arguments = {f'[{name}{end}]': name for _, name in ARGUMENT.findall(body) for end in ('', '+0')}
        self.registers.update({name: kind for kind, name in ARGUMENT.findall(body)})

        def move(match):
            kind, to, of = match.groups()
            if to not in arguments and of not in arguments:
                return match[0]
            return f'mov.{kind} {arguments.get(to, to)}, {arguments.get(of, of)};'
        return ARGUMENT.sub('', ACCESS.sub(move, body))

    def read_parameters(self, text):
        self.parameters, end = {}, 0  # name: (offset, bytes), as C lays out a structure
        for align, kind, name, count in PARAMETER.findall(text):
            align = int(align or BYTES[kind])
            begin, size = -(-end // align) * align, BYTES[kind] * int(count or 1)
            self.parameters[name] = begin, size
            end = begin + size
        self.parameter_bytes = end

    def read_code(self, body):
        self.code, self.labels = [], {}
        body = OPERANDS.sub(r'<\1>', body)
        for statement in re.split(r';|(?<=:)\s*\n', body):
            text = ' '.join(statement.split()).strip('{} ')
            label = re.match(r'([\w$]+):\s*', text)
            while label:
                self.labels[label[1]] = len(self.code)
                text = text[label.end():].strip('{} ')
                label = re.match(r'([\w$]+):\s*', text)
            if text and not text.startswith('.pragma'):
                self.code.append(instruction(text))


class Module:
    def __init__(self, text):
        text = re.sub(r'//[^\n]*', '', text)
        text = re.sub(r'^\s*\.(?:loc|file)\b[^\n]*', '', text, flags=re.M)
        self.functions = {name: (result, parameters, body) for result, name, parameters, body in FUNCTION.findall(text)}
        self.kernels = {name: (parameters, body) for name, parameters, _, body in KERNEL.findall(text)}
        self.variables = variables(KERNEL.sub('', text))

    @functools.cache
    def kernel(self, name):
        """Read when it is first launched: one test launches few of the kernels, and reading takes as long as running."""
        parameters, body = self.kernels[name]
        return Kernel(name, parameters, inlined(body, self.functions))
