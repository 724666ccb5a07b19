from PIL import Image
def draw_machine(machine): return Image.new("RGB",(10,10))
